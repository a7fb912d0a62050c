"""From corrections to a better version of a checkpoint, which has to prove itself against the one in use."""
