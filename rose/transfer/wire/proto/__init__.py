"""What crosses between processes as protobuf; `weights.proto` says it, the build compiles it."""
