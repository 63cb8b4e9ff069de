"""Published claims: their ledgers, the checks that fire on them, and what our own records say of them."""
