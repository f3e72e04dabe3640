"""Transfer between processes: control by gRPC, chunks by TCP, and access rules."""
