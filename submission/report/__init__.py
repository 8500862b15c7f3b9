"""The page of a finished run.

elements.py has the parts of the page; overview.py, results.py and listening.py fill them; page.py assembles the page.
"""
