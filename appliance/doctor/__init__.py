"""`fairlane doctor`: what of this machine would keep the appliance from serving well, and what to do about it."""
