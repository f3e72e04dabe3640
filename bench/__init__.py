"""Benchmarks. With this file, Python finds this folder before other packages named `bench`."""
