"""What the notebooks say: their data, their tables and plots, and sentences made of the numbers.

A notebook explains and calls; whatever it concludes is computed here from the results at hand, so
that the conclusion of another machine's run is another one, and so that it has tests.
"""
