"""Agent programs, which ask the policy by OpenAI's API, and environments of other libraries."""
