"""The HTTP server: OpenAI's API over one engine. The app is made by `octavo.server.app.create_app`."""
