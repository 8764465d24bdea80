"""Model families behind one protocol: how each reads prompts, and where its model's parts are."""
