"""Names of attributes that playback adds to objects of other libraries."""

UPDATES = "_retrotape_updates"  # of an optimizer: what is known about its updates
