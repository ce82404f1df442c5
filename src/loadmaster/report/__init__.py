"""What a person reads: tables, and the numbers behind them as plain data."""
