"""A session as people see it: in sentences, figures and causes, for `kafila-ctl` and for the page alike."""
