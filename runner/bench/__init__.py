"""Running arms side by side: schedule, isolation, the machine, its disturbances."""
