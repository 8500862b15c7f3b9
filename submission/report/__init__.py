"""The page of a finished run.

elements.py has its parts; overview.py, results.py and listening.py fill them; page.py puts the page together.
"""
