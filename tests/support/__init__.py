"""What the tests share: a private Redis, real processes, clients that check what they read."""
