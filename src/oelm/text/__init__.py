"""The words of messages and reports in English and Chinese: tables of sentences, and what fills them in."""
