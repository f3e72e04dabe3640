"""Between processes: control by gRPC, chunks by TCP, and who may talk."""
