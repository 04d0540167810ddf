"""Files that a profile makes whole for what watches a server: rules, dashboards."""
