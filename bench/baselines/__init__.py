"""What the product is compared with: the same engine with less in front of it, or with something simpler."""
