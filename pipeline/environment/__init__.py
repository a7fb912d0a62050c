"""Makes the virtual environments that scripts run in; needs only the standard library of Python 3.8 or later."""
