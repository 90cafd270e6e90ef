"""Why a gradient is None, where a NaN comes from, what ran and what is held in memory."""
