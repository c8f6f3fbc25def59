setup:
	@echo placeholder
