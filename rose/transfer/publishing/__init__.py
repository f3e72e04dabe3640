"""The trainer's side: contributors pack, the publisher signs, the log stores."""
