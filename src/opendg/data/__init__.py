"""Data: files -> Index -> Store. Images are listed by `tree`, named by `catalog`, decoded by `decode` and `store`."""
