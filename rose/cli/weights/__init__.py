"""The programs that move weights between machines: publish, relay and receive."""
