"""The page of a finished run: parts.py says what it is made of; account.py, results.py and listening.py fill it,
page.py puts it together."""
