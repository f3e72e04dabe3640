"""Protobuf messages between processes, compiled from `weights.proto` by the build."""
