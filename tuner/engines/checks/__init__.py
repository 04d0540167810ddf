"""The checks of ``tuner doctor``: can this machine and its engines be measured?"""
