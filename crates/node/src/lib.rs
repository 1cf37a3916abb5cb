//! The server's shell: sockets, write-ahead log, configuration. It decides nothing.
