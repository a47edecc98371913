"""What exhibits share: tables and their formats, pictures and their theme, panels, legends, diagrams, words."""
