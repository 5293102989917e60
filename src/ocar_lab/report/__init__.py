"""Pictures and pages made from stored runs."""
