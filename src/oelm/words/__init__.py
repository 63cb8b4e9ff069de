"""What the reading says, in English and Chinese: tables of sentences, and the one function that fills them in."""
