"""What is fed to an arm, as token ids."""
