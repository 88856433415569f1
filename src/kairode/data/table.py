read=write=None
