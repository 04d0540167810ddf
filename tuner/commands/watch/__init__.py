"""``tuner watch``: does a live server still keep what its profile promises?"""
