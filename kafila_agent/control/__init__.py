"""Up to the rendezvous over gRPC; down to ``kafila-ctl`` over a local socket."""
