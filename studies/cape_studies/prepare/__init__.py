"""What cape-run makes of a user's data for the studies ``my_…``, a module for each kind of data:

python -m cape_studies.prepare.images --images DIR --out prepared
"""
