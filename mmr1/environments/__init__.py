"""What answers the policy between its turns: tools, and environments with a state."""
