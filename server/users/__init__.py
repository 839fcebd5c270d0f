"""Users: whose key a request has, what that lets them do, and what they used."""
