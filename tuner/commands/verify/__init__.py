"""``tuner verify``: is a promise kept on a fresh engine?"""
