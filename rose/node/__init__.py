"""What runs on one machine: workers in processes of their own, and the servers that reach them."""
