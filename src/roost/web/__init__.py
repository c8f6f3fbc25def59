"""The browser app, as the package build left it in `dist/`, served beside the API."""
