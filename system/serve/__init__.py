"""Search page.

The search page: type a query and listen to the clips that a trained model finds.
"""
