"""Sources of tokens. `base` is the contract; one module or package per engine."""
