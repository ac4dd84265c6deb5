"""The one wire: a handshake with a shared secret, TLS, frames and their limits, for whatever processes send each other.

handshake     who calls proves that it has the secret, and so does who listens; then TLS, if the job encrypts
encryption    the job's certificate
frames        lengths | head | payload, through a connection or a login shell's pipes
messages      frames over a connection, with deadlines; the caller's end of a switchboard
switchboard   the listener's end: a handler of messages in an event loop
"""
