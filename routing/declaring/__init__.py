"""The control plane: what exists is declared, changed and deleted here."""
