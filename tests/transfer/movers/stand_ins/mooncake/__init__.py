"""What rose calls of Mooncake's transfer engine: for machines without the wheel."""
