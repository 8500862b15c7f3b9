"""The page of a finished run: elements.py says what it is made of; overview.py, results.py and listening.py fill it,
page.py puts it together."""
