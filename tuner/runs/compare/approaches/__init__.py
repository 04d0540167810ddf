"""The ways of serving that are compared, named in ``registry``."""
