"""OpenFlow controller of SOS."""
